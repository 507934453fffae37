"""Islands of replicas that train alone for some steps and then meet (DiLoCo); bits depend on the score alone."""
