// forced_unwind.cpp: what the extension's code with exceptions does if pthread_exit unwinds its stack.

#include <unwind.h>

// The unwinder calls this function, the personality routine, for each frame that has destructors to run, a catch clause
// or a promise not to throw. CMakeLists.txt has the linker put ours (`__wrap_`) in the place of the C++ runtime's
// (`__real_`): https://itanium-cxx-abi.github.io/cxx-abi/abi-eh.html#unwind-personality
extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class exception_class, _Unwind_Exception* exception,
                                                _Unwind_Context* context);

// Until Python 3.13, a daemon thread that requests the interpreter's lock during the interpreter's shutdown is ended by
// pthread_exit, inside pybind11's functions for example. The C++ runtime would run destructors, which need the lock
// that the thread does not have, and end the process at the first noexcept function. The runtime that is linked in may
// also have an unwinder of its own, which cannot read the context of the C library's. So such frames are passed over,
// like those of C; what they own is left to the end of the process, which is near.
_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions,
                                                _Unwind_Exception_Class exception_class, _Unwind_Exception* exception,
                                                _Unwind_Context* context) {
  if ((actions & _UA_FORCE_UNWIND) != 0) return _URC_CONTINUE_UNWIND;
  return __real___gxx_personality_v0(version, actions, exception_class, exception, context);
}

}  // extern "C"
