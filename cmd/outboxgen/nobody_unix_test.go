//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// asNobody takes root's right to write everywhere from cmd.
func asNobody(cmd *exec.Cmd) {
	const nobody = 65534
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}
