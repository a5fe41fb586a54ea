-- One database per service that keeps tables: no service reads another's.
CREATE DATABASE scenario_runner;
CREATE DATABASE trajectory_store;
CREATE DATABASE checkpoint_registry;
CREATE DATABASE model_gateway;
