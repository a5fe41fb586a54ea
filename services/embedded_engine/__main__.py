"""`upcycle-embedded-engine`: the program, once its libraries are known to be installed."""

from service_kit.extras import needs_train

with needs_train("upcycle-embedded-engine"):
    from embedded_engine.app import main

if __name__ == "__main__":
    main()
