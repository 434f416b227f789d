//go:build !linux

package pgserver

import "os/exec"

// dieWithParent does nothing where the kernel has no such signal; the guard does it all.
func dieWithParent(*exec.Cmd) {}
