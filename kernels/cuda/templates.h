/* The templates of CUDA kernels (*.cuh here) as text that dtmc carries, and programs made of them. A program names what it takes,
 *
 *     #include "kernels/cuda/rows.cuh"
 *
 * and so do templates; as NVRTC finds no header, and a program is to be the same wherever it is compiled, the text stands in its
 * place, each template once. Lines keep the numbers and names of where they came from. */
#ifndef DTM_CUDA_TEMPLATES_H
#define DTM_CUDA_TEMPLATES_H

#include <stddef.h>

/* NULL if there is none at that path. */
const char *dtm_template_text(const char *path);

/* `text` with all that it includes, its lines named after `name`, which is absolute. Free it. NULL if memory ran out or, and then
 * *missing says which (up to the end of its line), where a template is named that there is not. */
char *dtm_template_program(const char *name, const char *text, const char **missing);

#endif
