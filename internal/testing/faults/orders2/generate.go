// Package orders2 has the events of a shop, as edition 2 of its services knows them.
package orders2

//go:generate go tool outboxgen generate
