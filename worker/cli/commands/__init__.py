"""The commands, a module for each family. Each is imported when one of its commands is called."""
