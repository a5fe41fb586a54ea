"""The OpenAI API of a deployment: routes a model slug to the engines that serve its head."""
