//go:build !linux

package brokertest

import "os/exec"

func dieWithParent(*exec.Cmd) {}

func killAll(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
