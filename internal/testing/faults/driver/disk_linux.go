package driver

import (
	"fmt"
	"os"
	"syscall"
)

// fill makes a file that takes all that is left of a disk.
func fill(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	defer func() { _ = f.Close() }()
	for size := int64(64 << 20); size >= 4096; {
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("fill the disk: %w", err)
		}
		if err := syscall.Fallocate(int(f.Fd()), 0, info.Size(), size); err != nil {
			size /= 2
		}
	}
	return nil
}

// Mount mounts a disk of its own of so many bytes in memory. It is only for a process with its own mounts, so that it goes away with it.
func Mount(dir string, size int64) error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", size)); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// OwnMounts has a process that is started have its own mounts.
func OwnMounts() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
}
