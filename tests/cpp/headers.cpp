// headers.cpp: only the headers that are compiled once for all tests.
#include "support.h"
