//go:build !linux

package driver

import (
	"errors"
	"syscall"
)

var errNoDisk = errors.New("only Linux has disks of its own for a process")

func fill(string) error { return errNoDisk }

func drain(string) error { return errNoDisk }

// Mount fails.
func Mount(string) error { return errNoDisk }

// OwnMounts does nothing.
func OwnMounts() *syscall.SysProcAttr { return nil }
