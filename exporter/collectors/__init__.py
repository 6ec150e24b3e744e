"""One module for each source of samples; the file stem is its name everywhere. A new file is found by itself."""
