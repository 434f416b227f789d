package main

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// inRoot returns a command that has folder as its root, and the user of the image, or nil if this process may not do
// that.
func inRoot(folder, name string, args ...string) *exec.Cmd {
	if os.Geteuid() != 0 || runtime.GOARCH != "amd64" {
		return nil
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: folder, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	return cmd
}
