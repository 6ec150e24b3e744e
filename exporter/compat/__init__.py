"""Series in the names, units and labels of other exporters."""
