"""Localization files: PO, TMX and XLIFF, whose untranslated units are filled in while all else stays."""
