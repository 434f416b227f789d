// Package drivertest enqueues through every driver and library of docs/start/drivers.md, with the real libraries. The functions of
// this package are the examples of that page.
package drivertest
