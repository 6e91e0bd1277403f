"""Files in a kit's local folder that are ours."""

SITE_FILE = "fedcircuits.json"  # which client this site runs, and from what; written by the site
PARTY_FILE = "party.json"  # the party's name and where its coordinator is; written with the kit
SPEC_FILE = "client_spec.fc"  # where a whole federation runs on one machine
