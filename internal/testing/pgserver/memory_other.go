//go:build !linux

package pgserver

// memoryParent returns "": the files are on disk.
func memoryParent() string { return "" }
