//go:build unix

// Package suspend has the signals with which tests stop a process for a while.
package suspend

import "syscall"

// Stop suspends a process, and Continue resumes it.
const (
	Stop     = syscall.SIGSTOP
	Continue = syscall.SIGCONT
)
