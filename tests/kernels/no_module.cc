// A shared library that is no backend module.

extern "C" int quire_no_module() { return 1; }
