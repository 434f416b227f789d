//go:build !linux

package pgserver

import "os/exec"

// dieWithParent does nothing, because the kernel has no such signal. The guard ends the server.
func dieWithParent(*exec.Cmd) {}
