"""The properties: laws that every attention kernel must satisfy, one a file."""
