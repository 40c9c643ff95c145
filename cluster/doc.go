// Package cluster lets the guards of one target in many processes share what they see, through Redis.
package cluster

import _ "github.com/redis/go-redis/v9" // until the client is written
