//go:build race

package lsp_test

// raceFactor is how much slower the race detector makes the server, at most.
const raceFactor = 10
