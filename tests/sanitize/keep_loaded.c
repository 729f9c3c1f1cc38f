/* Loaded before everything else (LD_PRELOAD): libraries stay loaded to the end of a process, so that the sanitizer knows to
 * which of them what leaks at the end belongs (mpi.supp names those that are not ours). */
int dlclose(void *handle);
int dlclose(void *handle) { return handle ? 0 : -1; }
