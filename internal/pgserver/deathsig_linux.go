package pgserver

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel shut the server down at once when the forking thread ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
}
