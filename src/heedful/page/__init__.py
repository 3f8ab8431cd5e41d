"""The web page: hand-written ES modules without a build step, and what serves and packs them."""
