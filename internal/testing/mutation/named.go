package main

import (
	"regexp"
	"time"
)

// namedTakes is what a named test takes at most, alone.
const namedTakes = 30 * time.Second

// namedTests are the tests that show what cases cannot, by the ids of the mutants.
var namedTests = []struct {
	of    *regexp.Regexp
	tests []string
}{}
