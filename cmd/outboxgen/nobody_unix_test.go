//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// asNobody makes cmd run as the user nobody if this process is root, which may write everywhere.
func asNobody(cmd *exec.Cmd) {
	const nobody = 65534
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}
