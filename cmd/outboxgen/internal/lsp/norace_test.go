//go:build !race

package lsp_test

const raceFactor = 1
