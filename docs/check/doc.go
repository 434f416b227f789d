// Package check has only tests. They compile or run every code block of the README, CONTRIBUTING, the pages of docs and
// the READMEs of the examples, and follow the tutorial in an empty folder. It is a separate module because the pages
// use every module of the project. docs/inside/testing.md says how a page tells the test what a block needs.
package check
