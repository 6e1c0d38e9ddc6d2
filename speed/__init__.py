"""Speed of the package against straightforward peers, measured side by side."""
