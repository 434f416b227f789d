package driver

import (
	"fmt"
	"syscall"
)

// fill leaves nothing of a disk that Mount has mounted: it is made as small as what is on it.
func fill(dir string) error {
	var err error
	for range 100 { // the server may write meanwhile
		var fs syscall.Statfs_t
		if err = syscall.Statfs(dir, &fs); err != nil {
			break
		}
		used := int64(fs.Blocks-fs.Bfree) * fs.Bsize
		if err = resize(dir, used); err == nil {
			return nil
		}
	}
	return fmt.Errorf("fill the disk: %w", err)
}

// drain makes a disk as large as it was.
func drain(dir string) error {
	if err := resize(dir, diskSize); err != nil {
		return fmt.Errorf("drain the disk: %w", err)
	}
	return nil
}

func resize(dir string, size int64) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", size))
}

// diskSize is the limit of a disk. Only what is on it takes memory.
const diskSize = 8 << 30

// Mount mounts a disk in memory. It is only for a process with its own mounts, so that it goes away with it.
func Mount(dir string) error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", diskSize)); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// OwnMounts has a process that is started have its own mounts.
func OwnMounts() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
}
