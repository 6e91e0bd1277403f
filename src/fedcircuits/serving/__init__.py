"""A gathered model as a small HTTP service for a team: JSON in, JSON out, one token."""
