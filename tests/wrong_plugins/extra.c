/* A second symbol for everybody to see. */
__attribute__((visibility("default"))) int wrong_helper(void) { return 1; }
