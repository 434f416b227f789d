package generator

import (
	"errors"
	"syscall"
)

// isBusy reports whether err may be that of a file which another program has open. Windows does not replace such a
// file. A file that is read-only has the same error as one that is being scanned.
func isBusy(err error) bool {
	const sharingViolation = syscall.Errno(32)
	return errors.Is(err, sharingViolation) || errors.Is(err, syscall.ERROR_ACCESS_DENIED)
}
