#include "passes/shard.h"
void shard_warnings(shard *s) { (void)s; }
