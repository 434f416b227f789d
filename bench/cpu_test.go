package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func selfCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func backendsCPU(db *database) time.Duration {
	rows, _ := db.pool.Query(context.Background(), "select pid from pg_stat_activity where datname=current_database() and backend_type in ('client backend','parallel worker')")
	var total int64
	for rows.Next() {
		var pid int
		_ = rows.Scan(&pid)
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(b)[strings.LastIndex(string(b), ")")+2:])
		var u, s int64
		fmt.Sscan(f[11], &u)
		fmt.Sscan(f[12], &s)
		total += u + s
	}
	return time.Duration(total) * 10 * time.Millisecond
}

func TestCPU(t *testing.T) {
	s, err := start()
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	const n = 200000
	for range 2 {
		for _, c := range relay(n).contenders {
			if only := os.Getenv("ONLY"); only != "" && !strings.HasPrefix(c.name, only) {
				continue
			}
			var self, pg time.Duration
			db, err := s.database(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			relayBefore = func() { self, pg = selfCPU(), backendsCPU(db) }
			relayAfter = func() { self, pg = selfCPU()-self, backendsCPU(db)-pg }
			f, err := c.run(context.Background(), db)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("%-30s %9.0f/s  go %6.2f us  pg %6.2f us  sum %6.2f\n", c.name, f, self.Seconds()*1e6/n, pg.Seconds()*1e6/n, (self+pg).Seconds()*1e6/n)
			_ = db.drop(context.Background())
		}
	}
}
