package driver

import (
	"os"
	"testing"

	"github.com/outboxgen/outboxgen/internal/testing/faults/shop"
)

// TestMain is also the main function of the processes of the shop.
func TestMain(m *testing.M) {
	if orders := os.Getenv(shop.Variable); orders != "" {
		os.Exit(shop.Main(orders))
	}
	os.Exit(m.Run())
}
