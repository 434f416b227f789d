package dashboard

import "time"

// WaitForForgets sets how long somebody waits for the end of a forget.
func (p *Page) WaitForForgets(d time.Duration) { p.forgetWait = d }
