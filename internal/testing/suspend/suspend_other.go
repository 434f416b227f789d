//go:build !unix

// Package suspend has the signals with which tests stop a process for a while.
package suspend

import "syscall"

// Stop and Continue let the tests compile. Sending them is an error, because Windows suspends no process by a signal.
const (
	Stop     = syscall.Signal(19)
	Continue = syscall.Signal(18)
)
