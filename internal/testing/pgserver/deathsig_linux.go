package pgserver

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel shut the server down immediately when the forking thread ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
}
