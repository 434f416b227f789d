package generator

import (
	"os"
	"syscall"
)

// Creations returns what WriteNew writes.
var Creations = creations

// WhileBusy is how Write replaces a file that may be open.
var WhileBusy = whileBusy

// LimitDisk lets c write limit bytes in total.
func (c *Changes) LimitDisk(limit int) {
	c.writeTo = func(f *os.File, content []byte) (int, error) {
		if len(content) > limit {
			n, _ := f.Write(content[:limit])
			limit = 0
			return n, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
		}
		limit -= len(content)
		return f.Write(content)
	}
}
