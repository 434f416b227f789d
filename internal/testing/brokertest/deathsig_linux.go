package brokertest

import (
	"os/exec"
	"syscall"
)

// dieWithParent puts the program into its own session, so that a ^C in the terminal does not reach it, and makes the
// kernel kill it when the forking thread ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}

// killAll kills the program and its children, such as one that writes a snapshot. It fails only if they have ended.
func killAll(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Process.Kill()
}
