//go:build race

package generator_test

const raceFactor = 10
