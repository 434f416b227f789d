package amqp

import "math"

// ShareChannels lets messages of any size share a channel.
func (p *Publisher) ShareChannels() { p.aloneFrom = math.MaxInt }
