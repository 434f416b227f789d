// Package events has the events of the tests.
package events

//go:generate go tool outboxgen generate
