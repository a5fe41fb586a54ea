"""`upcycle-grpo-trainer`: the program, once its libraries are known to be installed."""

from service_kit.extras import needs_train

with needs_train("upcycle-grpo-trainer"):
    from grpo_trainer.app import main

if __name__ == "__main__":
    main()
