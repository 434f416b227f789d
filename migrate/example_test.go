package migrate_test

import (
	"fmt"

	"github.com/outboxgen/outboxgen/migrate"
)

// The migrations join the history of an application that uses goose and has eleven files so far.
func ExampleExport() {
	files, err := migrate.Export("outbox", migrate.Goose, 12)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(files[0].Name)
	// Output: 00012_outbox_events.sql
}
