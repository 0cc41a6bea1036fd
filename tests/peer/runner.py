"""Runs plain test functions one after another and says how many passed."""

import time
import traceback


def run(tests, *arguments):
    """Calls each test with `arguments`; returns 0 if all passed, else 1. The last line printed counts them."""
    passed, failed = 0, []
    for test in tests:
        title = (test.__doc__ or test.__name__).strip().splitlines()[0]
        begun = time.monotonic()
        try:
            test(*arguments)
        except Exception:
            failed.append(test.__name__)
            print(f"FAILED {title} [{test.__name__}]\n{traceback.format_exc(limit=-4)}", flush=True)
        else:
            passed += 1
            print(f"ok     {title} ({time.monotonic() - begun:.1f} s)", flush=True)
    print(f"{passed} passed, {len(failed)} failed" + (f": {' '.join(failed)}" if failed else ""), flush=True)
    return 1 if failed else 0


def tests_of(module):
    """The functions of a module whose names begin with test_, in the order they are written."""
    return [value for name, value in vars(module).items() if name.startswith("test_")]
